/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A rule in a datagram: src/datagram.rs of the crate `splice`. */
#pragma once

#include <linux/types.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Numbers are in network order. */
struct rule_datagram {
	__be64 magic;
	__be64 counter;
	__be32 key;
	__be16 flags;
	__be16 window;
	__be32 first;
	__be32 end;
	__be32 request_end;
	__be32 delta;
	__be32 ack;
	__be32 clock_offset;
	__be32 echo;
	__be16 ports[4]; /* server, balancer, service, client */
	__be32 grant_ack;
	__u8 addresses[4][16];
	__be32 grant_value;
	__be32 grant_echo;
	__be16 grant_window;
	__u8 zero[6];
	__be64 tag;
};
_Static_assert(sizeof(struct rule_datagram) == 152, "as src/datagram.rs");

#define DATAGRAM_MAGIC 0x554e535000000003ull
#define DATAGRAM_HAS_END 1
#define DATAGRAM_HAS_CLOCK 2
#define DATAGRAM_IPV6 4
#define DATAGRAM_HAS_GRANT 8
#define DATAGRAM_GRANT_CLOCK 16
#define DATAGRAM_AWAITS_HEAD 32
#define DATAGRAM_WORDS 18

static __always_inline __u64 rotated(__u64 word, int bits)
{
	return word << bits | word >> (64 - bits);
}

#define SIP_ROUND                                                                       \
	do {                                                                            \
		a += b, b = rotated(b, 13) ^ a, a = rotated(a, 32);                     \
		c += d, d = rotated(d, 16) ^ c;                                         \
		a += d, d = rotated(d, 21) ^ a;                                         \
		c += b, b = rotated(b, 17) ^ c, c = rotated(c, 32);                     \
	} while (0)

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of the datagram without its tag. */
static __always_inline __u64 tag_of(const struct rule_datagram *datagram, const __u64 secret[2])
{
	const __u64 *words = (const __u64 *)datagram;
	__u64 a = secret[0] ^ 0x736f6d6570736575ull, b = secret[1] ^ 0x646f72616e646f6dull;
	__u64 c = secret[0] ^ 0x6c7967656e657261ull, d = secret[1] ^ 0x7465646279746573ull;

	for (int i = 0; i <= DATAGRAM_WORDS; i++) {
		/* The last word has the length. */
		__u64 word = i < DATAGRAM_WORDS ? words[i] : (8ull * DATAGRAM_WORDS) << 56;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
		word = __builtin_bswap64(word);
#endif
		d ^= word;
		SIP_ROUND;
		SIP_ROUND;
		a ^= word;
	}
	c ^= 0xff;
	SIP_ROUND;
	SIP_ROUND;
	SIP_ROUND;
	SIP_ROUND;
	return a ^ b ^ c ^ d;
}
