/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* String search: the host of an HTTP request, looked up in a list.
 *
 * In the first 240 bytes of a payload to TCP port 80, after a header of any
 * length, "\nhost:" is searched for in any case; the name after it, up to the first
 * control character, blank or colon but for one blank in front, is hashed in lower
 * case (djb2). A name on the list is counted and dropped with reason 1. */
#include "function.h"

#define SEARCHED 240
#define PLACES 64

struct host {
	u32 hash; /* 0: none */
	u32 length;
	u32 requests;
	u32 last_ms;
};

#define FIRST_hosts                                                     \
	{                                                               \
		[44] = {0xfe14d52c, 15, 0, 0}, /* ads.example.net */    \
		[62] = {0xd9c617be, 11, 0, 0}, /* example.com */        \
		[63] = {0xa9fe463f, 12, 0, 0}, /* tracker.test */       \
	}
#define TABLES(TABLE) TABLE(struct host, hosts, PLACES)
DEFINE_TABLES(TABLES)

FUNCTION(http_host, 334)

INLINE u32 lower(u32 byte)
{
	/* Without a branch, both sides of which the verifier would follow each time. */
	return byte | ((('A' - 1) - byte) & (byte - ('Z' + 1))) >> 31 << 5;
}

/* "\nhost:", the first byte lowest. */
#define SOUGHT 0x3a74736f680aull
#define SOUGHT_LENGTH 6

/* Parser state: a byte of a line, the blank before the name, the name. */
enum { LINE, BLANK, NAME };

u32 handle(struct packet *packet)
{
	if (!has(packet, TCP_END) || !is_ipv4(packet) ||
	    GET8(packet, IP_PROTOCOL) != PROTOCOL_TCP ||
	    GET16(packet, L4_DESTINATION) != TAM_BE16(80))
		return TAM_PASS;
	u32 at = L4 + (GET8(packet, L4 + 12) >> 4 << 2);
	u32 next = LINE, matched = 0, hash = 5381, length = 0;
	for (u32 i = 0; i < SEARCHED; i++) {
		i32 byte = byte_at(packet, at + i);
		if (byte < 0)
			break;
		if (next == LINE) {
			if (lower(byte) == (u8)(SOUGHT >> (8 * matched)))
				matched++;
			else
				matched = byte == '\n';
			if (matched == SOUGHT_LENGTH)
				next = BLANK;
			continue;
		}
		if (next == BLANK) {
			next = NAME;
			if (byte == ' ')
				continue;
		}
		if (byte <= ' ' || byte == ':')
			break;
		hash = hash * 33 + lower(byte);
		length++;
	}
	if (next == LINE)
		return TAM_PASS;
	struct host TABLE_SPACE *host = AT(hosts, hash % PLACES);
	if (MISSING(host) || host->hash != hash || host->length != length)
		return TAM_PASS;
	host->requests++;
	host->last_ms = now_ms();
	return TAM_DROP(1);
}
