/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Cuts the payload of a segment. */
#pragma once

#include "parse.h"

/* Takes the payload behind `kept` bytes off the lengths, but not out of the frame, and does not correct the
 * checksum of TCP. IP ignores bytes behind its packet, as those of a short Ethernet frame. Returns -1 if the
 * packet is half changed. */
static __always_inline int shorten_payload(struct __sk_buff *skb, struct segment *segment, __u32 kept)
{
	__u32 cut = segment->payload > kept ? segment->payload - kept : 0, at;
	__be16 length, was;

	segment->bytes -= cut;
	segment->payload -= cut;
	if (segment->key.family == 4) {
		at = sizeof(struct ethhdr) + __builtin_offsetof(struct iphdr, tot_len);
		length = bpf_htons(segment->at - sizeof(struct ethhdr) + segment->bytes);
		return bpf_skb_load_bytes(skb, at, &was, sizeof(was)) ||
				       bpf_l3_csum_replace(skb, sizeof(struct ethhdr) + 10, was, length, 2) ||
				       bpf_skb_store_bytes(skb, at, &length, sizeof(length),
							   BPF_F_RECOMPUTE_CSUM) ?
			       -1 :
			       0;
	}
	at = sizeof(struct ethhdr) + __builtin_offsetof(struct ipv6hdr, payload_len);
	length = bpf_htons(segment->at - sizeof(struct ethhdr) - sizeof(struct ipv6hdr) +
			   segment->bytes);
	return bpf_skb_store_bytes(skb, at, &length, sizeof(length), BPF_F_RECOMPUTE_CSUM) ? -1 : 0;
}

/* Cuts the payload also out of the frame, which copies it. */
static __always_inline int cut_payload(struct __sk_buff *skb, struct segment *segment, __u32 kept)
{
	__u32 whole = segment->bytes;

	if (shorten_payload(skb, segment, kept))
		return -1;
	if (segment->bytes == whole)
		return 0;
	return bpf_skb_change_tail(skb, segment->at + segment->bytes, 0) ? -1 : 0;
}
