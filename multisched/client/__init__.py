"""All network: transport, credentials, reflectors, binder, events, pod conditions, leases.

Sees `multisched.model` and `multisched.framework.ports` only. Everything but `transport` and `auth` works on any
`Transport`, so it also runs against the embedded cluster in process and under a virtual clock.
"""
