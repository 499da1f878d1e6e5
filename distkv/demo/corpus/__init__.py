"""The documents of the demo: generated facts and sentences, plain English, and questions about the facts."""
