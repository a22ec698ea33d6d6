"""The Flower app: the parties' side (`client_app`), the server's (`transport`, `server`), what lies in their messages
(`records`), and what starts the processes of both (`superexec`).

The only folder that imports flwr. `client_app` and `records` import nothing heavy: Flower starts a process for each
message.
"""
