/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory functions that clang calls implicitly: to copy or clear structures, and for loops that it
 * recognises. There is no C library for modules; `tam build` links this file after a project's
 * own files, which may override these functions. Unused functions are not in the module.
 *
 * Compiled with -fno-builtin: otherwise a loop here would become a call of itself.
 */
typedef __SIZE_TYPE__ size_t;
typedef unsigned char byte;

#define WEAK __attribute__((weak))

WEAK void *memset(void *to, int value, size_t length)
{
	byte *at = to;

	while (length--)
		*at++ = (byte)value;
	return to;
}

WEAK void *memcpy(void *restrict to, const void *restrict from, size_t length)
{
	byte *at = to;
	const byte *source = from;

	while (length--)
		*at++ = *source++;
	return to;
}

WEAK void *memmove(void *to, const void *from, size_t length)
{
	byte *at = to;
	const byte *source = from;

	if (at <= source) {
		while (length--)
			*at++ = *source++;
	} else {
		while (length--)
			at[length] = source[length];
	}
	return to;
}

WEAK int memcmp(const void *first, const void *second, size_t length)
{
	const byte *one = first, *other = second;

	for (; length; length--, one++, other++)
		if (*one != *other)
			return *one - *other;
	return 0;
}

WEAK int bcmp(const void *first, const void *second, size_t length)
{
	return memcmp(first, second, length);
}
