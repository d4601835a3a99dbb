/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Mean and deviation of a flow's packet lengths, in 64-bit fixed point.
 *
 * One of 1,024 slots for each flow, by hash; another flow takes the slot over.
 * Lengths have 16 bits of fraction. Mean and mean absolute deviation move
 * towards each packet by 1/n, n at most 64 (a signed division); the sum of squares is kept
 * in whole bytes. A packet that is more than eight deviations and 256 bytes off is
 * dropped with reason 1 once the flow has 8 packets. */
#include "function.h"

#define PLACES 1024
#define FRACTION 16
#define COUNT_MAX 64
#define SETTLED 8

struct meter {
	u64 flow;
	i64 mean;
	i64 deviation;
	u64 squares;
	u32 count;
	u32 outliers;
	u64 last_ms;
};

#define FIRST_meters {{0, 0, 0, 0, 0, 0, 0}}
#define TABLES(TABLE) TABLE(struct meter, meters, PLACES)
DEFINE_TABLES(TABLES)

FUNCTION(flow_meter, 64)

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!flow_of(packet, &flow))
		return TAM_PASS;
	u64 key = ((u64)flow.source << 32 | flow.destination) * 0x9e3779b97f4a7c15ull;
	key ^= ((u64)flow.ports << 8 | flow.protocol) * 0xff51afd7ed558ccdull;
	key ^= key >> 32;
	struct meter TABLE_SPACE *meter = AT(meters, key % PLACES);
	if (MISSING(meter))
		return TAM_PASS;
	u64 length = length_of(packet);
	if (meter->flow != key) {
		meter->flow = key;
		meter->mean = length << FRACTION;
		meter->deviation = length << FRACTION;
		meter->squares = length * length;
		meter->count = 1;
		meter->outliers = 0;
		meter->last_ms = now_ms();
		return TAM_PASS;
	}
	i64 off = (i64)(length << FRACTION) - meter->mean;
	i64 size = off < 0 ? -off : off;
	u32 count = meter->count;
	meter->last_ms = now_ms();
	if (count >= SETTLED && size > 8 * meter->deviation && size > (256ll << FRACTION)) {
		meter->outliers++;
		return TAM_DROP(1);
	}
	if (count < COUNT_MAX)
		meter->count = ++count;
	meter->mean += off / (i64)count;
	meter->deviation += (size - meter->deviation) / (i64)count;
	meter->squares += length * length;
	return TAM_PASS;
}
