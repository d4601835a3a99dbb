/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Count-min sketch: heavy flows are dropped.
 *
 * Four rows of 1,024 counters. Each packet of TCP or UDP adds one to the
 * counter that its flow has in each row; the smallest of the four is the
 * estimate, and above LIMIT the packet is dropped with reason 1. */
#include "function.h"

#define ROWS 4
#define COLUMNS 1024
#define LIMIT 3

#define FIRST_counters {0}
#define TABLES(TABLE) TABLE(u32, counters, ROWS * COLUMNS)
DEFINE_TABLES(TABLES)

FUNCTION(count_min, 64)

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!flow_of(packet, &flow))
		return TAM_PASS;
	/* Two hashes make four (Kirsch and Mitzenmacher). */
	u32 first = hash_of(&flow, 0), second = finished(first ^ 0x9e3779b9) | 1;
	u32 least = 0xffffffff;
	for (u32 row = 0; row < ROWS; row++) {
		u32 column = (first + row * second) % COLUMNS;
		u32 TABLE_SPACE *counter = AT(counters, row * COLUMNS + column);
		if (MISSING(counter))
			return TAM_PASS;
		u32 count = ++*counter;
		if (count < least)
			least = count;
	}
	return least > LIMIT ? TAM_DROP(1) : TAM_PASS;
}
