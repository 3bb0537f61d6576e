"""What the benchmark of the gateway runs: an upstream, a load generator, and the proxies that are compared."""
