/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* String search for several words at once, by an automaton (Aho and Corasick).
 *
 * The first 128 bytes after a UDP header go through it, one by one: a byte has a
 * class, state and class give the next state. States from FOUND on have found a
 * word: "/etc/passwd", "cmd.exe", "<script" or "union sel", in any case. It is
 * counted, and the packet dropped with the word's number as the reason. */
#include "function.h"

#define SEARCHED 128
#define CLASSES 32
#define STATES 35
#define FOUND 31
#define WORDS (STATES - FOUND)

struct row {
	u8 next[CLASSES];
};

struct word {
	u32 packets;
	u32 last_ms;
};

#define FIRST_classes										\
	{											\
		[' '] = 1, ['.'] = 2, ['/'] = 3, ['<'] = 4, ['A'] = 5, ['a'] = 5, ['C'] = 6,	\
		['c'] = 6, ['D'] = 7, ['d'] = 7, ['E'] = 8, ['e'] = 8, ['I'] = 9, ['i'] = 9,	\
		['L'] = 10, ['l'] = 10, ['M'] = 11, ['m'] = 11, ['N'] = 12, ['n'] = 12,		\
		['O'] = 13, ['o'] = 13, ['P'] = 14, ['p'] = 14, ['R'] = 15, ['r'] = 15,		\
		['S'] = 16, ['s'] = 16, ['T'] = 17, ['t'] = 17, ['U'] = 18, ['u'] = 18,		\
		['W'] = 19, ['w'] = 19, ['X'] = 20, ['x'] = 20,					\
	}
#define FIRST_rows										\
	{											\
		{{[3] = 1, [4] = 17, [6] = 11, [18] = 23}},					\
		{{[3] = 1, [4] = 17, [6] = 11, [8] = 2, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [17] = 3, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 4, [18] = 23}},					\
		{{[3] = 5, [4] = 17, [6] = 11, [11] = 12, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [8] = 2, [14] = 6, [18] = 23}},			\
		{{[3] = 1, [4] = 17, [5] = 7, [6] = 11, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [16] = 8, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [16] = 9, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [18] = 23, [19] = 10}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [7] = 31, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [11] = 12, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [7] = 13, [18] = 23}},				\
		{{[2] = 14, [3] = 1, [4] = 17, [6] = 11, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [8] = 15, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [18] = 23, [20] = 16}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [8] = 32, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [16] = 18, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 19, [18] = 23}},					\
		{{[3] = 1, [4] = 17, [6] = 11, [11] = 12, [15] = 20, [18] = 23}},		\
		{{[3] = 1, [4] = 17, [6] = 11, [9] = 21, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [14] = 22, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [17] = 33, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [12] = 24, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [9] = 25, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [13] = 26, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [12] = 27, [18] = 23}},				\
		{{[1] = 28, [3] = 1, [4] = 17, [6] = 11, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [16] = 29, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [8] = 30, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [10] = 34, [18] = 23}},				\
		{{[3] = 1, [4] = 17, [6] = 11, [18] = 23}},					\
		{{[3] = 1, [4] = 17, [6] = 11, [18] = 23}},					\
		{{[3] = 1, [4] = 17, [6] = 11, [18] = 23}},					\
		{{[3] = 1, [4] = 17, [6] = 11, [18] = 23}},					\
	}
#define FIRST_words {{0, 0}}
#define TABLES(TABLE)                     \
	TABLE(u8, classes, 256)           \
	TABLE(struct row, rows, STATES)   \
	TABLE(struct word, words, WORDS)
DEFINE_TABLES(TABLES)

FUNCTION(signatures, 170)

u32 handle(struct packet *packet)
{
	if (!has(packet, UDP_DATA) || !is_ipv4(packet) || GET8(packet, IP_PROTOCOL) != PROTOCOL_UDP)
		return TAM_PASS;
	u32 state = 0;
	for (u32 i = 0; i < SEARCHED && state < FOUND; i++) {
		i32 byte = byte_at(packet, UDP_DATA + i);
		if (byte < 0)
			break;
		const u8 TABLE_SPACE *class = AT(classes, byte);
		const struct row TABLE_SPACE *row = AT(rows, state);
		if (MISSING(class) || MISSING(row))
			return TAM_PASS;
		state = row->next[*class % CLASSES];
	}
	if (state < FOUND || state >= STATES)
		return TAM_PASS;
	struct word TABLE_SPACE *word = AT(words, state - FOUND);
	if (MISSING(word))
		return TAM_PASS;
	word->packets++;
	word->last_ms = now_ms();
	return TAM_DROP(state - FOUND + 1);
}
