"""The `diptych` command: a local cluster on one machine, a demo, a chat, and looks into a running cluster.

Starts services as processes and speaks to them over gRPC; must not import their packages. May import `services.core`,
`services.runtime`, `services.pb` and `services.modelfiles`, beside typer, rich and the OTLP messages. Only `__main__`
reads the environment.
"""
