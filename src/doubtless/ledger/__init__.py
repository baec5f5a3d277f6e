"""What is durable: operations, attempts, evidence, the journal. The only SQL of the product.

`store` opens a ledger and runs transactions; the other modules are plain functions over one.
"""
