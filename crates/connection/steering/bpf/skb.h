/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Segments in buffers of the kernel: found, and given other addresses. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include "parse.h"

#define NEXT -1 /* both TCX_NEXT and TC_ACT_UNSPEC */
#define SHOT 2  /* both TCX_DROP and TC_ACT_SHOT */
#define PULL_BYTES 512

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define TIMESTAMPS_BYTES 10
/* NOP, NOP, timestamps: what every stack sends in segments with data. */
#define USUAL_OPTIONS_BYTES 12
#define USUAL_OPTIONS bpf_htonl(0x0101080a)

static __always_inline int before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline int parsed(struct __sk_buff *skb, struct segment *segment)
{
	int kind = parse((void *)(long)skb->data, (void *)(long)skb->data_end, segment);

	/* Headers outside the linear part are pulled in once. */
	if (kind != PACKET_CUT || skb->data_end - skb->data >= skb->len ||
	    bpf_skb_pull_data(skb, skb->len < PULL_BYTES ? skb->len : PULL_BYTES))
		return kind;
	return parse((void *)(long)skb->data, (void *)(long)skb->data_end, segment);
}

/* Writes source and destination, 16 bytes each, in place of those at `old`. The checksum of TCP covers
 * them as a pseudo header. */
static __always_inline int readdress(struct __sk_buff *skb, __u32 tcp_at, __u32 family,
				     const __u8 *old, const __u8 *new)
{
	__u32 check = tcp_at + __builtin_offsetof(struct tcphdr, check);
	__u32 at = sizeof(struct ethhdr) + (family == 4 ? 12 : 8);
	__u8 from[32], to[32];
	__s64 sum;

	__builtin_memcpy(from, old, sizeof(from));
	__builtin_memcpy(to, new, sizeof(to));
	/* The unused bytes of IPv4 addresses are zero in both. */
	sum = bpf_csum_diff((__be32 *)from, sizeof(from), (__be32 *)to, sizeof(to), 0);
	if (bpf_l4_csum_replace(skb, check, 0, sum, BPF_F_PSEUDO_HDR))
		return -1;
	if (family != 4)
		return bpf_skb_store_bytes(skb, at, to, sizeof(to), 0);
	if (bpf_l3_csum_replace(skb, sizeof(struct ethhdr) + 10, 0, sum, 0))
		return -1;
	return bpf_skb_store_bytes(skb, at, to, 4, 0) ||
	       bpf_skb_store_bytes(skb, at + 4, to + 16, 4, 0);
}
