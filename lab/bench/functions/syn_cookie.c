/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* SYN cookies: an ACK is accepted if it acknowledges the cookie of its flow.
 *
 * The cookie is SipHash-2-4 (64-bit additions, rotations, exclusive ors) of both
 * addresses, the ports and the minute, folded to 32 bits; that of the
 * previous minute is valid, too. A valid one admits the source, for whose later packets
 * nothing is computed; others are dropped with reason 1. SYNs pass and are
 * counted, resets and the rest pass. */
#include "function.h"

#define TCP_ACKNOWLEDGED (L4 + 8)
#define SOURCES 1024
#define MINUTE_SHIFT 16

struct source {
	u32 address; /* 0: none */
	u32 admitted_ms;
	u32 packets;
	u32 unused;
};

struct secret {
	u64 first;
	u64 second;
	u32 requests;
	u32 wrong;
};

#define FIRST_sources {{0, 0, 0, 0}}
#define FIRST_secrets {{0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull, 0, 0}}
#define TABLES(TABLE)                           \
	TABLE(struct source, sources, SOURCES)  \
	TABLE(struct secret, secrets, 1)
DEFINE_TABLES(TABLES)

FUNCTION(syn_cookie, 64)

struct sip {
	u64 a, b, c, d;
};

INLINE u64 rotated_64(u64 value, u32 by)
{
	return value << by | value >> (64 - by);
}

INLINE void sip_rounds(struct sip *state, u32 count)
{
	for (u32 i = 0; i < count; i++) {
		state->a += state->b;
		state->c += state->d;
		state->b = rotated_64(state->b, 13) ^ state->a;
		state->d = rotated_64(state->d, 16) ^ state->c;
		state->a = rotated_64(state->a, 32);
		state->c += state->b;
		state->a += state->d;
		state->b = rotated_64(state->b, 17) ^ state->c;
		state->d = rotated_64(state->d, 21) ^ state->a;
		state->c = rotated_64(state->c, 32);
	}
}

INLINE void sip_word(struct sip *state, u64 word)
{
	state->d ^= word;
	sip_rounds(state, 2);
	state->a ^= word;
}

INLINE u32 cookie_of(const struct flow *flow, u64 first, u64 second, u32 minute)
{
	struct sip state = {
		first ^ 0x736f6d6570736575ull,
		second ^ 0x646f72616e646f6dull,
		first ^ 0x6c7967656e657261ull,
		second ^ 0x7465646279746573ull,
	};
	sip_word(&state, (u64)flow->destination << 32 | flow->source);
	sip_word(&state, (u64)minute << 32 | flow->ports);
	sip_word(&state, 16ull << 56);
	state.c ^= 0xff;
	sip_rounds(&state, 4);
	u64 hash = state.a ^ state.b ^ state.c ^ state.d;
	return (u32)hash ^ (u32)(hash >> 32);
}

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!has(packet, TCP_END) || !flow_of(packet, &flow) || flow.protocol != PROTOCOL_TCP)
		return TAM_PASS;
	u32 flags = GET8(packet, TCP_FLAGS), now = now_ms();
	struct secret TABLE_SPACE *secret = AT(secrets, 0);
	if (MISSING(secret))
		return TAM_PASS;
	if (flags & TCP_SYN) {
		secret->requests++;
		return TAM_PASS;
	}
	if (!(flags & TCP_ACK) || flags & TCP_RST)
		return TAM_PASS;
	struct source TABLE_SPACE *source = AT(sources, finished(flow.source) % SOURCES);
	if (MISSING(source))
		return TAM_PASS;
	if (source->address == flow.source) {
		source->packets++;
		return TAM_PASS;
	}
	u32 cookie = TAM_BE32(GET32(packet, TCP_ACKNOWLEDGED)) - 1;
	u64 first = secret->first, second = secret->second;
	u32 minute = now >> MINUTE_SHIFT;
	if (cookie != cookie_of(&flow, first, second, minute) &&
	    cookie != cookie_of(&flow, first, second, minute - 1)) {
		secret->wrong++;
		return TAM_DROP(1);
	}
	source->address = flow.source;
	source->admitted_ms = now;
	source->packets = 1;
	return TAM_PASS;
}
