"""What is allowed: modes, rights, quotas, and the audit of both."""
