"""Serving over time: traffic, queues, batching and the KV cache as an exact discrete-event simulation."""
