/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Cuts the payload of a segment. */
#pragma once

#include "parse.h"

/* Cuts the payload behind `kept` bytes, and corrects the lengths, but not the checksum of TCP. Returns -1 if the
 * packet is half changed. */
static __always_inline int cut_payload(struct __sk_buff *skb, struct segment *segment, __u32 kept)
{
	__u32 cut = segment->payload > kept ? segment->payload - kept : 0, at;
	__be16 length, was;

	segment->bytes -= cut;
	segment->payload -= cut;
	if (cut && bpf_skb_change_tail(skb, segment->at + segment->bytes, 0))
		return -1;
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
