"""Writers of topics' tables: what engine.client.table_writing says, done."""
