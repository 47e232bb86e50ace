"""The shell around the pure core: gRPC, NATS, OpenTelemetry, settings, process life. Knows no tensors and no policy."""
