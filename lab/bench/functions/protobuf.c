/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Variable-length integers: telemetry in the wire format of Protocol Buffers.
 *
 * A message to UDP port 9995 is a sequence of fields: a tag (number and wire type)
 * as a varint, then a varint, eight bytes, four bytes, or a length and as many
 * bytes, which are skipped. Its first 54 bytes are read one by one. The values of
 * a field are summed up under its number modulo 16, the greatest is kept. A message
 * that ends within a field is dropped with reason 1, one with a tag of more than
 * five bytes, a number of more than ten or a length of more than two with 2, with
 * another wire type with 3. */
#include "function.h"

#define MESSAGE_MAX 54

/* Wire types, and parser states. */
enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };
enum { TAG, NUMBER, LENGTH, FIXED, SKIPPED };

struct metric {
	u64 sum;
	u64 greatest;
	u32 count;
	u32 skipped;
};

#define FIRST_metrics {{0, 0, 0, 0}}
#define TABLES(TABLE) TABLE(struct metric, metrics, 16)
DEFINE_TABLES(TABLES)

FUNCTION(protobuf, 96)

INLINE void add(u32 number, u64 value)
{
	struct metric TABLE_SPACE *metric = AT(metrics, number % 16);
	if (MISSING(metric))
		return;
	metric->sum += value;
	if (value > metric->greatest)
		metric->greatest = value;
	metric->count++;
}

INLINE void skip(u32 number)
{
	struct metric TABLE_SPACE *metric = AT(metrics, number % 16);
	if (!MISSING(metric))
		metric->skipped++;
}

/* State after a tag of a wire type; TAG for an unknown type. */
INLINE u32 after_tag(u32 type)
{
	switch (type) {
	case VARINT:
		return NUMBER;
	case BYTES:
		return LENGTH;
	case FIXED_64:
	case FIXED_32:
		return FIXED;
	default:
		return TAG;
	}
}

/* Most bits of a varint. */
INLINE u32 bits_of(u32 reading)
{
	return reading == TAG ? 5 * 7 : reading == LENGTH ? 2 * 7 : 10 * 7;
}

u32 handle(struct packet *packet)
{
	if (!has(packet, UDP_DATA) || !is_ipv4(packet) ||
	    GET8(packet, IP_PROTOCOL) != PROTOCOL_UDP ||
	    GET16(packet, L4_DESTINATION) != TAM_BE16(9995))
		return TAM_PASS;
	u32 reading = TAG, shift = 0, left = 0, number = 0;
	u64 value = 0;
	for (u32 i = 0; i < MESSAGE_MAX; i++) {
		i32 byte = byte_at(packet, UDP_DATA + i);
		if (byte < 0)
			return reading == TAG && shift == 0 ? TAM_PASS : TAM_DROP(1);
		if (reading == SKIPPED) {
			if (--left == 0)
				reading = TAG;
			continue;
		}
		if (reading == FIXED) {
			value |= (u64)(u32)byte << shift;
			shift += 8;
			if (shift < left)
				continue;
		} else {
			value |= (u64)(byte & 0x7f) << shift;
			shift += 7;
			if (byte & 0x80) {
				if (shift == bits_of(reading))
					return TAM_DROP(2);
				continue;
			}
		}
		if (reading == TAG) {
			u32 type = value & 7;
			number = (u32)(value >> 3);
			reading = after_tag(type);
			if (reading == TAG)
				return TAM_DROP(3);
			left = type == FIXED_64 ? 64 : 32;
		} else if (reading == LENGTH) {
			skip(number);
			left = value;
			reading = left ? SKIPPED : TAG;
		} else {
			add(number, value);
			reading = TAG;
		}
		value = 0;
		shift = 0;
	}
	return TAM_PASS;
}
