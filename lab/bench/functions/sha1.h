/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* SHA-1 (RFC 3174), written plainly: what SANE had in C and in Caml, compiled here for the
 * machine and for a module from the same lines. It is measured, and protects nothing. */
#pragma once
#include <stdint.h>

#define SHA1_LENGTH 20
#define SHA1_BLOCK 64

static inline uint32_t sha1_turned(uint32_t word, int by)
{
	return word << by | word >> (32 - by);
}

static void sha1_block(uint32_t state[5], const uint8_t *block)
{
	uint32_t words[80];
	uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];

	for (int i = 0; i < 16; i++)
		words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
			   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
	for (int i = 16; i < 80; i++)
		words[i] = sha1_turned(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
#define SHA1_ROUNDS(from, to, mix, constant)                                                       \
	for (int i = from; i < to; i++) {                                                          \
		uint32_t next = sha1_turned(a, 5) + (mix) + e + words[i] + constant;               \
		e = d, d = c, c = sha1_turned(b, 30), b = a, a = next;                             \
	}
	SHA1_ROUNDS(0, 20, d ^ (b & (c ^ d)), 0x5a827999u)
	SHA1_ROUNDS(20, 40, b ^ c ^ d, 0x6ed9eba1u)
	SHA1_ROUNDS(40, 60, (b & c) | (d & (b | c)), 0x8f1bbcdcu)
	SHA1_ROUNDS(60, 80, b ^ c ^ d, 0xca62c1d6u)
#undef SHA1_ROUNDS
	state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

/* `length` is a multiple of SHA1_BLOCK, and less than 2^29. */
static void sha1(const uint8_t *bytes, uint32_t length, uint8_t digest[SHA1_LENGTH])
{
	uint32_t state[5] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u};
	uint8_t last[SHA1_BLOCK] = {0x80};

	for (uint32_t at = 0; at < length; at += SHA1_BLOCK)
		sha1_block(state, bytes + at);
	for (int i = 0; i < 4; i++)
		last[SHA1_BLOCK - 1 - i] = (uint8_t)(length * 8 >> 8 * i);
	sha1_block(state, last);
	for (int i = 0; i < SHA1_LENGTH; i++)
		digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* What is hashed: the bytes have the low eight bits of three times their places, and one. */
static void sha1_fill(uint8_t *bytes, uint32_t length)
{
#ifdef __clang__
#pragma clang loop unroll(disable) vectorize(disable) /* it is short in the module, too */
#endif
	for (uint32_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(3 * i + 1);
}
