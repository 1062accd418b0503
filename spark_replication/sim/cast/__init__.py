"""Who acts in a simulated world: brokers, controllers, clients, operators."""
