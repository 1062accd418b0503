"""How processes reach each other: Arrow Flight for clients, controller and guardians; framed TCP between brokers."""
