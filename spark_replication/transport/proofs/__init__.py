"""Who is there: tokens, certificates, handshakes, and answers that prove whose they are."""
