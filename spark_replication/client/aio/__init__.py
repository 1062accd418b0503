"""Producer, Consumer, Reader and Admin for asyncio: `sr.aio`. They wait on the event loop for what the others wait for
in a thread, and do nothing else by themselves."""

from spark_replication.client.aio.admin import AsyncAdmin as Admin
from spark_replication.client.aio.consumer import AsyncConsumer as Consumer
from spark_replication.client.aio.producer import AsyncProducer as Producer
from spark_replication.client.aio.reader import AsyncReader as Reader

__all__ = ["Admin", "Consumer", "Producer", "Reader"]
