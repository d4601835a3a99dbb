/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* SYN-flood filter.
 *
 * A source may send LIMIT connection requests in each second until it has
 * finished one handshake (it sends an ACK); then as many as it likes. Requests
 * above that are dropped with reason 1. A table of 4,096 sources, one place for
 * each hash; a new source takes over the place of the former. */
#include "function.h"

#define PLACES 4096
#define LIMIT 4

struct source {
	u32 address;
	u16 requests;
	u8 second; /* its low eight bits */
	u8 verified;
};

#define FIRST_sources {{0}}
#define TABLES(TABLE) TABLE(struct source, sources, PLACES)
DEFINE_TABLES(TABLES)

FUNCTION(syn_flood, 64)

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!has(packet, TCP_END) || !flow_of(packet, &flow) || flow.protocol != PROTOCOL_TCP)
		return TAM_PASS;
	u32 flags = GET8(packet, TCP_FLAGS) & (TCP_SYN | TCP_ACK | TCP_RST);
	struct source TABLE_SPACE *source = AT(sources, finished(flow.source) % PLACES);
	if (MISSING(source))
		return TAM_PASS;
	if (flags == TCP_ACK) {
		if (source->address == flow.source)
			source->verified = 1;
		return TAM_PASS;
	}
	if (flags != TCP_SYN)
		return TAM_PASS;
	u8 second = now_ms() >> 10;
	if (source->address != flow.source) {
		source->address = flow.source;
		source->verified = 0;
		source->requests = 0;
		source->second = second;
	}
	if (source->verified)
		return TAM_PASS;
	if (source->second != second) {
		source->second = second;
		source->requests = 0;
	}
	if (source->requests >= LIMIT)
		return TAM_DROP(1);
	source->requests++;
	return TAM_PASS;
}
