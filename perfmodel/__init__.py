"""perfmodel: how fast a language model runs on given hardware, what limits it, and whether it fits."""
