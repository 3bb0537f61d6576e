"""Tests of `agentos.gateway`."""
