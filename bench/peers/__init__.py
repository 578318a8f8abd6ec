"""Other ways to feed the same pictures to training, a file each, beside this project: `python -m bench.peers --help`.

A file names what it needs, says where its settings come from, and has a function that builds and one that loads.
Another peer is one new file: what it defines is `PEER`, see harness/peer.py.
"""
