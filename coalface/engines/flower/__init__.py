"""Over Flower: the parties' side (`node`), the server's (`link`), and what lies in their messages (`records`).

The only folder that imports flwr. `node` and `records` import nothing heavy: Flower starts a process for each message.
"""
