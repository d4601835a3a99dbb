/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* SHA-1 in machine code, the baseline of `tam reproduce sane-table1 sane-5`.
 *
 * Each line of input is "LENGTH TIMES"; each line of output "NANOSECONDS DIGEST": the total of all
 * repetitions, and the digest in hexadecimal digits. */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "../functions/sha1.h"

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

#define LENGTH_MAX (4u << 20)

int main(void)
{
	static uint8_t bytes[LENGTH_MAX];
	uint8_t digest[SHA1_LENGTH];
	unsigned length, times;

	sha1_fill(bytes, LENGTH_MAX);
	while (scanf("%u %u", &length, &times) == 2 && length <= LENGTH_MAX) {
		long long begun = now();

		for (unsigned i = 0; i < times; i++) {
			sha1(bytes, length, digest);
			/* Each repetition starts a new hash. */
			__asm__ volatile("" : : "r"(digest), "r"(bytes) : "memory");
		}
		printf("%lld ", now() - begun);
		for (int i = 0; i < SHA1_LENGTH; i++)
			printf("%02x", digest[i]);
		printf("\n");
		fflush(stdout);
	}
	return 0;
}
