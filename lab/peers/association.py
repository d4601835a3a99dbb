#!/usr/bin/env python3
"""A peer for associations in Python, written from docs/guides/associations.md alone.

Noise by the package noiseprotocol, all primitives by cryptography (OpenSSL).

    association.py ask PORT      asks the node at 127.0.0.1:PORT for an association
    association.py answer PORT   is asked by it, from any port

Either way it then sends active packets, which the other side sends back with the bytes
of their payload reversed, and looks at what must not be answered. Ends with 0 when all was
as it has to be.
"""

import hashlib
import hmac
import os
import socket
import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from noise.connection import Keypair, NoiseConnection

SUITE = b"Noise_XX_25519_AESGCM_SHA256"
PROLOGUE = b"tamandua association 1"
INITIATION, ANSWER, FINISH, COOKIE, CONFIRM, END, ACTIVE = range(1, 8)
EPOCH = 1 << 20
ANSWER_SECONDS_MAX = 20
SILENCE_SECONDS = 0.3
TOKEN = b"the token of a peer"


def fail(what):
    sys.exit(f"association.py: {what}")


def check(holds, what):
    if not holds:
        fail(what)


def message(kind, to, *parts):
    return struct.pack(">BBHI", 0x10 | kind, 0, 0, to) + b"".join(parts)


def read_message(datagram, kind, to):
    check(datagram[:8] == message(kind, to), f"expected message {kind}, got {datagram[:8].hex()}")
    return datagram[8:]


def expand(secret, label):
    info = b"tamandua association 1 " + label
    return HKDFExpand(algorithm=hashes.SHA256(), length=32, info=info).derive(secret)


def handshake_mac(root, label, to):
    return hmac.new(expand(root, label), struct.pack(">I", to), hashlib.sha256).digest()


class Handshake:
    """Noise state with copies of the values that the library discards after the last message."""

    def __init__(self, initiator):
        self.noise = NoiseConnection.from_name(SUITE)
        self.noise.set_as_initiator() if initiator else self.noise.set_as_responder()
        self.noise.set_prologue(PROLOGUE)
        self.static = os.urandom(32)
        self.noise.set_keypair_from_private_bytes(Keypair.STATIC, self.static)
        self.noise.start_handshake()
        self.state = self.noise.noise_protocol.handshake_state
        self.symmetric = self.state.symmetric_state
        self.key = Ed25519PrivateKey.generate()

    def hash(self):
        return bytes(self.symmetric.h)

    def identity(self, which):
        signed = b"tamandua association 1 " + which + b"\0" + self.hash() + self.state.s.public_bytes
        return self.key.public_key().public_bytes_raw() + self.key.sign(signed) + TOKEN

    def read_identity(self, which, before, payload):
        principal, signature, token = payload[:32], payload[32:96], payload[96:]
        signed = b"tamandua association 1 " + which + b"\0" + before + self.state.rs.public_bytes
        Ed25519PublicKey.from_public_bytes(principal).verify(signature, signed)
        print(f"association.py: principal {principal.hex()[:16]}, a token of {len(token)} bytes")

    def roots(self):
        protocol = self.noise.noise_protocol
        return protocol.cipher_state_encrypt.k, protocol.cipher_state_decrypt.k


class Wire:
    def __init__(self, sock, address):
        self.sock, self.address = sock, address

    def send(self, datagram):
        self.sock.sendto(datagram, self.address)

    def receive(self):
        self.sock.settimeout(ANSWER_SECONDS_MAX)
        datagram, self.address = self.sock.recvfrom(65535)
        return datagram

    def silence(self, why):
        self.sock.settimeout(SILENCE_SECONDS)
        try:
            fail(f"{why} was answered with {self.sock.recvfrom(65535)[0][:16].hex()}")
        except TimeoutError:
            pass


class Association:
    """Result of the handshake: session numbers, and a secret for each direction."""

    def __init__(self, wire, ours, theirs, send_root, receive_root):
        self.wire, self.ours, self.theirs = wire, ours, theirs
        self.send_root, self.receive_root = send_root, receive_root

    @staticmethod
    def key(root, counter):
        secret = expand(root, b"traffic")
        for _ in range(counter // EPOCH):
            secret = expand(secret, b"next")
        return AESGCM(expand(secret, b"key"))

    def seal(self, counter, encrypted, digest, payload):
        head = struct.pack(">BBHIQ", 0x10 | ACTIVE, int(encrypted), 0, self.theirs, counter) + digest
        nonce, key = bytes(4) + struct.pack(">Q", counter), self.key(self.send_root, counter)
        if encrypted:
            return head + key.encrypt(nonce, payload, head)
        return head + payload + key.encrypt(nonce, b"", head + payload)

    def open(self, datagram):
        first, flags, zero, to, counter = struct.unpack(">BBHIQ", datagram[:16])
        check((first, zero, to) == (0x10 | ACTIVE, 0, self.ours), "no active packet for us")
        nonce, key = bytes(4) + struct.pack(">Q", counter), self.key(self.receive_root, counter)
        try:
            if flags == 1:
                payload = key.decrypt(nonce, datagram[48:], datagram[:48])
            else:
                key.decrypt(nonce, datagram[-16:], datagram[:-16])
                payload = datagram[48:-16]
        except InvalidTag:
            fail("an active packet does not open")
        return flags == 1, datagram[16:48], payload

    def exchange(self, counter, encrypted, payload):
        digest = os.urandom(32)
        packet = self.seal(counter, encrypted, digest, payload)
        self.wire.send(packet)
        back = self.open(self.wire.receive())
        check(back == (encrypted, digest, payload[::-1]), f"packet {counter} came back changed")
        return packet

    def end(self):
        mac = handshake_mac(self.send_root, b"end", self.theirs)
        self.wire.send(message(END, self.theirs, mac))


def ask(wire):
    ours = struct.unpack(">I", os.urandom(4))[0] | 1
    handshake = Handshake(initiator=True)
    question = bytes(handshake.noise.write_message(struct.pack(">I", ours) + bytes(1124)))
    wire.send(message(INITIATION, 0, bytes(32), question))
    datagram = wire.receive()
    if datagram[0] == 0x10 | COOKIE:
        body = read_message(datagram, COOKIE, ours)
        check(body[32:] == question[:32], "the cookie is for another question")
        check(len(datagram) < 1200, "the cookie is longer than the question")
        print("association.py: asked for a cookie")
        wire.send(message(INITIATION, 0, body[:32], question))
        datagram = wire.receive()
    before = handshake.hash()
    payload = bytes(handshake.noise.read_message(read_message(datagram, ANSWER, ours)))
    theirs = struct.unpack(">I", payload[:4])[0]
    handshake.read_identity(b"answer", before, payload[4:])
    finish = bytes(handshake.noise.write_message(handshake.identity(b"finish")))
    send_root, receive_root = handshake.roots()
    wire.send(message(FINISH, theirs, finish))
    mac = read_message(wire.receive(), CONFIRM, ours)
    check(mac == handshake_mac(receive_root, b"confirm", ours), "the confirmation is wrong")
    return Association(wire, ours, theirs, send_root, receive_root)


def answer(wire):
    ours = struct.unpack(">I", os.urandom(4))[0] | 1
    handshake = Handshake(initiator=False)
    datagram = wire.receive()
    check(len(datagram) == 1200, "message 1 has another length")
    body = read_message(datagram, INITIATION, 0)
    payload = bytes(handshake.noise.read_message(body[32:]))
    theirs = struct.unpack(">I", payload[:4])[0]
    check(theirs != 0 and not any(payload[4:]), "message 1 is not padded with zeros")
    identity = struct.pack(">I", ours) + handshake.identity(b"answer")
    wire.send(message(ANSWER, theirs, bytes(handshake.noise.write_message(identity))))
    finish = read_message(wire.receive(), FINISH, ours)
    before = handshake.hash()
    payload = bytes(handshake.noise.read_message(finish))
    handshake.read_identity(b"finish", before, payload)
    send_root, receive_root = handshake.roots()
    wire.send(message(CONFIRM, theirs, handshake_mac(send_root, b"confirm", theirs)))
    return Association(wire, ours, theirs, send_root, receive_root)


def packets(association):
    counters = [0, 1, 3, 2, 8000, 17, EPOCH - 1, EPOCH, EPOCH - 2, 9 * EPOCH + 5, 9 * EPOCH - 1]
    sizes = [0, 1, 15, 16, 17, 64, 512, 1460, 2230, 9000, 60000]
    sent = []
    for number, (counter, size) in enumerate(zip(counters, sizes, strict=True)):
        for off in (0, 40):
            payload = os.urandom(size)
            sent.append(association.exchange(counter + 100 * off, bool((number + off) % 2), payload))
    for packet in sent:
        association.wire.send(packet)
    association.wire.silence("a packet that came twice")
    fresh = association.seal(9 * EPOCH + 6, True, bytes(32), b"never seen")
    for at in range(len(fresh)):
        association.wire.send(fresh[:at] + bytes([fresh[at] ^ 1]) + fresh[at + 1 :])
    association.wire.silence("a changed packet")
    association.exchange(9 * EPOCH + 7, False, b"still here")
    print(f"association.py: {len(sent) + 1} packets came back, none of {len(fresh) + len(sent)} bad ones")


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    address = ("127.0.0.1", port)
    if role == "ask":
        association = ask(Wire(sock, address))
    elif role == "answer":
        sock.bind(address)
        print("association.py: ready", flush=True)
        association = answer(Wire(sock, None))
    else:
        fail("usage: association.py ask|answer PORT")
    packets(association)
    association.end()


if __name__ == "__main__":
    main()
