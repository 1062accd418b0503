"""What leaders and the controller both go by: who may lead, what a partition may become, what is written of it."""
