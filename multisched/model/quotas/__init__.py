"""Quota objects of other APIs as trees, one file per API, and the writer of a tree as an ElasticQuotaTree."""
