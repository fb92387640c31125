"""Serverless providers: their rates of creates, outages, error messages and sandbox sizes."""
