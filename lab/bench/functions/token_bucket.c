/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Token bucket: a rate for each source.
 *
 * The last byte of the source address picks one of 256 buckets. A bucket gets
 * `rate` bytes of credit each millisecond, up to `burst`; a packet longer than
 * the credit is dropped with reason 1. Time is the node's coarse time. */
#include "function.h"

struct bucket {
	u64 credit;
	u64 last_ms;
	u32 rate;
	u32 burst;
};

#define BUCKET(rate, burst) {burst, 0, rate, burst}
#define FIRST_buckets                                    \
	{                                                \
		[0 ... 127] = BUCKET(125, 1500),         \
		[128 ... 254] = BUCKET(0, 0xffffffffu),  \
		[255] = BUCKET(0, 0),                    \
	}
#define TABLES(TABLE) TABLE(struct bucket, buckets, 256)
DEFINE_TABLES(TABLES)

FUNCTION(token_bucket, 64)

u32 handle(struct packet *packet)
{
	if (!is_ipv4(packet))
		return TAM_PASS;
	struct bucket TABLE_SPACE *bucket = AT(buckets, GET8(packet, IP_SOURCE + 3));
	if (MISSING(bucket))
		return TAM_PASS;
	u64 now = now_ms(), length = length_of(packet);
	u64 credit = bucket->credit + (now - bucket->last_ms) * bucket->rate;
	if (credit > bucket->burst)
		credit = bucket->burst;
	bucket->last_ms = now;
	if (credit < length) {
		bucket->credit = credit;
		return TAM_DROP(1);
	}
	bucket->credit = credit - length;
	return TAM_PASS;
}
