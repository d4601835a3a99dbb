/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Bloom filter: sources that sent to a trap address are blocked.
 *
 * The source of a packet to 192.0.2.66 is added to a filter of 65,536 bits with
 * four hashes; from then on packets of a source in the filter are dropped with
 * reason 1. */
#include "function.h"

#define WORDS 1024
#define HASHES 4
#define TRAP ADDRESS(192, 0, 2, 66)

#define FIRST_words {0}
#define TABLES(TABLE) TABLE(u64, words, WORDS)
DEFINE_TABLES(TABLES)

FUNCTION(bloom, 64)

u32 handle(struct packet *packet)
{
	if (!is_ipv4(packet))
		return TAM_PASS;
	u32 source = GET32(packet, IP_SOURCE);
	u32 learn = GET32(packet, IP_DESTINATION) == TRAP;
	u32 first = finished(source), second = finished(source ^ 0x9e3779b9) | 1;
	for (u32 i = 0; i < HASHES; i++) {
		u32 bit = (first + i * second) % (WORDS * 64);
		u64 TABLE_SPACE *word = AT(words, bit / 64);
		if (MISSING(word))
			return TAM_PASS;
		if (learn)
			*word |= 1ull << bit % 64;
		else if (!(*word >> bit % 64 & 1))
			return TAM_PASS;
	}
	return TAM_DROP(1);
}
