"""The rules that leaders and the controller share: who may lead, what a partition may become, what is written of it."""
