"""Prefill chunks that fetch a creditor's KV and attend to it here, where that takes less time than shipping queries."""
