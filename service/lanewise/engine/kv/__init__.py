"""Which blocks and states a sequence holds, and which of them later requests can use again."""
