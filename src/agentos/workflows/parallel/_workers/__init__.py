"""How an attempt is carried out: threads, asyncio, processes."""
