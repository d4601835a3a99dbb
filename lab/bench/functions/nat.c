/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Source NAT with a flow table.
 *
 * Flows from 10.0.0.0/8 leave as 203.0.113.1 with a port of their own: FIRST_PORT
 * plus their index in the table. The hash of the flow selects the slot at which the
 * search begins; it covers PROBES slots, and takes the first empty one. A packet
 * whose flow finds none is dropped with reason 1. A packet to
 * 203.0.113.1 is translated back if it comes from the flow's other end, else
 * dropped with reason 2. Everything else passes. */
#include "function.h"

#define PLACES 4096
#define PROBES 8
#define FIRST_PORT 16384
#define PUBLIC ADDRESS(203, 0, 113, 1)

struct place {
	u32 inside;
	u32 outside;
	u32 ports; /* inside's in the low half; network byte order */
	u32 protocol; /* 0: empty */
};

#define FIRST_places {{0}}
#define TABLES(TABLE) TABLE(struct place, places, PLACES)
DEFINE_TABLES(TABLES)

FUNCTION(nat, 64)

INLINE u32 outbound(struct packet *packet, const struct flow *flow)
{
	u32 hash = hash_of(flow, 0);
	for (u32 probe = 0; probe < PROBES; probe++) {
		u32 index = (hash + probe) % PLACES;
		struct place TABLE_SPACE *place = AT(places, index);
		if (MISSING(place))
			return TAM_PASS;
		if (place->protocol == 0) {
			place->inside = flow->source;
			place->outside = flow->destination;
			place->ports = flow->ports;
			place->protocol = flow->protocol;
		} else if (place->inside != flow->source || place->outside != flow->destination ||
			   place->ports != flow->ports || place->protocol != flow->protocol) {
			continue;
		}
		u16 old = flow->ports, port = TAM_BE16(FIRST_PORT + index);
		PUT16(packet, IP_CHECKSUM,
		      checksum_after(GET16(packet, IP_CHECKSUM), flow->source, PUBLIC));
		update_l4_checksum(packet, flow->protocol, flow->source, PUBLIC, old, port);
		PUT32(packet, IP_SOURCE, PUBLIC);
		PUT16(packet, L4_SOURCE, port);
		return TAM_PASS;
	}
	return TAM_DROP(1);
}

INLINE u32 inbound(struct packet *packet, const struct flow *flow)
{
	u16 port = flow->ports >> 16;
	u32 index = TAM_BE16(port) - FIRST_PORT;
	if (index >= PLACES)
		return TAM_DROP(2);
	const struct place TABLE_SPACE *place = AT(places, index);
	if (MISSING(place))
		return TAM_PASS;
	if (place->protocol != flow->protocol || place->outside != flow->source ||
	    place->ports >> 16 != (flow->ports & 0xffff))
		return TAM_DROP(2);
	u32 inside = place->inside;
	u16 inside_port = place->ports;
	PUT16(packet, IP_CHECKSUM, checksum_after(GET16(packet, IP_CHECKSUM), PUBLIC, inside));
	update_l4_checksum(packet, flow->protocol, PUBLIC, inside, port, inside_port);
	PUT32(packet, IP_DESTINATION, inside);
	PUT16(packet, L4_DESTINATION, inside_port);
	return TAM_PASS;
}

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!flow_of(packet, &flow))
		return TAM_PASS;
	if ((flow.source & 0xff) == 10)
		return outbound(packet, &flow);
	if (flow.destination == PUBLIC)
		return inbound(packet, &flow);
	return TAM_PASS;
}
