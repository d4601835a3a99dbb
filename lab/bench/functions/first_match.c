/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Access list: the first of 32 rules that matches decides and counts.
 *
 * A rule has prefixes of both addresses, a protocol (0: any), and a range of
 * destination ports. A packet that no rule matches is dropped with reason 1, one
 * that a rule denies with reason 2. */
#include "function.h"

#define RULES 32

struct rule {
	u32 source, source_mask;
	u32 destination, destination_mask;
	u16 port_min, port_max;
	u8 protocol;
	u8 in_use;
	u8 permits;
	u8 unused;
	u64 packets;
	u64 bytes;
};

#define ANY 0, 0
#define PREFIX_8(a) ADDRESS(a, 0, 0, 0), ADDRESS(255, 0, 0, 0)
#define PREFIX_24(a, b, c) ADDRESS(a, b, c, 0), ADDRESS(255, 255, 255, 0)
#define HOST(a, b, c, d) ADDRESS(a, b, c, d), 0xffffffffu
#define RULE(from, to, first, last, protocol, permits) \
	{from, to, first, last, protocol, 1, permits, 0, 0, 0}
#define FIRST_rules                                                                          \
	{                                                                                    \
		RULE(HOST(192, 0, 2, 66), ANY, 0, 65535, 0, 0),                              \
		RULE(ANY, HOST(10, 9, 9, 9), 22, 22, 6, 0),                                  \
		RULE(PREFIX_8(10), HOST(10, 9, 9, 9), 80, 80, 6, 1),                         \
		RULE(PREFIX_8(10), HOST(10, 9, 9, 9), 443, 443, 6, 1),                       \
		RULE(PREFIX_8(10), HOST(10, 9, 9, 9), 8000, 8099, 6, 1),                     \
		RULE(PREFIX_24(198, 51, 100), PREFIX_8(10), 53, 53, 17, 1),                  \
		RULE(PREFIX_24(198, 51, 100), PREFIX_8(10), 123, 123, 17, 1),                \
		RULE(PREFIX_24(198, 51, 100), PREFIX_8(10), 53, 53, 6, 1),                   \
		RULE(PREFIX_8(172), ANY, 0, 1023, 0, 0),                                     \
		RULE(PREFIX_8(172), ANY, 1024, 65535, 6, 1),                                 \
		RULE(ANY, PREFIX_24(203, 0, 113), 25, 25, 6, 0),                             \
		RULE(ANY, PREFIX_24(203, 0, 113), 0, 65535, 0, 1),                           \
		RULE(PREFIX_24(192, 168, 1), ANY, 0, 65535, 0, 1),                           \
		RULE(ANY, HOST(10, 9, 9, 10), 500, 500, 17, 1),                              \
		RULE(ANY, HOST(10, 9, 9, 10), 4500, 4500, 17, 1),                            \
		RULE(ANY, PREFIX_8(10), 33434, 33534, 17, 1),                                \
	}
#define TABLES(TABLE) TABLE(struct rule, rules, RULES)
DEFINE_TABLES(TABLES)

FUNCTION(first_match, 64)

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!flow_of(packet, &flow))
		return TAM_PASS;
	u32 port = TAM_BE16(flow.ports >> 16);
	for (u32 i = 0; i < RULES; i++) {
		struct rule TABLE_SPACE *rule = AT(rules, i);
		if (MISSING(rule) || !rule->in_use)
			break;
		if ((flow.source & rule->source_mask) != rule->source ||
		    (flow.destination & rule->destination_mask) != rule->destination ||
		    port < rule->port_min || port > rule->port_max ||
		    (rule->protocol != 0 && rule->protocol != flow.protocol))
			continue;
		rule->packets++;
		rule->bytes += length_of(packet);
		return rule->permits ? TAM_PASS : TAM_DROP(2);
	}
	return TAM_DROP(1);
}
