"""Inspect, patch, validate and gate speculative-decoding code for a new target model."""

__version__ = "0.1.0"
