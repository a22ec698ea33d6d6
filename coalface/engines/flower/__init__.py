"""Over Flower: the parties' side (`node`), the server's (`link`), what lies in their messages (`records`), and
what starts the processes of both (`superexec`).

The only folder that imports flwr. `node` and `records` import nothing heavy: Flower starts a process for each message.
"""
