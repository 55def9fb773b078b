/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What becomes of a packet of a known flow. But for the hop limit only hardware addresses change,
 * so no checksum of TCP does: right for complete and for partial checksums alike. */
#pragma once

#include "belief.h"

#define NEXT -1 /* TCX_NEXT and TC_ACT_UNSPEC alike */
#define SHOT 2  /* TCX_DROP and TC_ACT_SHOT alike */

/* How often one packet is redirected, by all hosts together: the first redirection lowers its hop
 * limit to this, every further one lowers it by one. So the hosts' tables may say what they like:
 * no packet runs between them for long. */
#define HOPS_MAX 16

/* State is read before the words it guards, in the order user space writes them. */
static __always_inline __u32 state_of(struct slot *slot)
{
#if defined(__TARGET_ARCH_x86)
	return *(volatile __u32 *)&slot->state;
#else
	return __sync_fetch_and_add(&slot->state, 0);
#endif
}

/* A segment that was on its way through several owners acknowledges less than the client has since
 * done. A socket that was restored meanwhile takes such an acknowledgement for one from long ago
 * and drops the segment (RFC 5961 5.2): so it is given the newest one, which the client has sent,
 * and the window that came with it. A wrong checksum stays wrong. */
static __always_inline void refresh_ack(struct __sk_buff *skb, const struct segment *segment,
					const struct belief *belief)
{
	__u32 newest = belief->last_ack, tcp = segment->at;
	__be32 from = bpf_htonl(segment->ack), to = bpf_htonl(newest);
	__be16 before = bpf_htons(segment->window), after = bpf_htons(belief->last_window);

	if (bpf_l4_csum_replace(skb, tcp + 16, from, to, sizeof(to)) ||
	    bpf_skb_store_bytes(skb, tcp + 8, &to, sizeof(to), 0))
		return;
	if (!bpf_l4_csum_replace(skb, tcp + 16, before, after, sizeof(after)))
		bpf_skb_store_bytes(skb, tcp + 14, &after, sizeof(after), 0);
}

/* Takes from the segment what is new and true, and gives it what is newer. */
static __always_inline void note(struct __sk_buff *skb, const struct segment *segment,
				 struct slot *slot)
{
	__u32 news = judge(&slot->belief, segment);

	if (news & (BELIEF_ACK | BELIEF_SEQ)) {
		if (is_intact_skb(skb, segment))
			believe(&slot->belief, segment, news);
		else
			count(COUNT_CORRUPT);
	}
	if (news & BELIEF_OLD)
		refresh_ack(skb, segment, &slot->belief);
}

/* The hop limit after one more redirection; 0 where there must be none. */
static __always_inline __u8 next_hops(__u8 hops)
{
	if (hops > HOPS_MAX)
		return HOPS_MAX;
	return hops > 1 ? hops - 1 : 0;
}

/* Lowers the hop limit of the frame in place; -1 where it must not be redirected. */
static __always_inline int lower_ipv4(struct iphdr *ip, const void *end)
{
	if ((const void *)(ip + 1) > end)
		return -1;
	__u8 hops = next_hops(ip->ttl);

	if (!hops)
		return -1;
	/* RFC 1624: the word of hop limit and protocol gets smaller, the checksum larger. */
	__u32 sum = (__u16)~ip->check;

	sum += (__u16)~bpf_htons((__u16)ip->ttl << 8) + bpf_htons((__u16)hops << 8);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	ip->ttl = hops;
	return 0;
}

static __always_inline int lower_hops(struct __sk_buff *skb, __u32 family)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (family == 4)
		return lower_ipv4(data + sizeof(struct ethhdr), end);
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > end)
		return -1;
	__u8 hops = next_hops(ip->hop_limit);

	if (!hops)
		return -1;
	/* By a call: a device's sum over the packet has to follow, as IPv6 has none of its own. */
	return bpf_skb_store_bytes(skb, sizeof(struct ethhdr) +
					__builtin_offsetof(struct ipv6hdr, hop_limit),
				   &hops, sizeof(hops), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int send_to_owner(struct __sk_buff *skb, struct slot *slot, __u32 family)
{
	if (lower_hops(skb, family)) {
		count(COUNT_HOPS);
		return SHOT;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	/* Written in place: a call would cost a third of the program. */
	if (data + sizeof(slot->mac) > end)
		return NEXT;
	__builtin_memcpy(data, slot->mac, sizeof(slot->mac));
	__sync_fetch_and_add(&slot->packets, 1);
	__sync_fetch_and_add(&slot->bytes, skb->len);
	return bpf_redirect(slot->ifindex, 0);
}

/* The owner's own address as the sender: the owner has frozen the connection and sends its packets
 * back, until user space has heard of it. Meant for the next owner, so they wait here. A host
 * without a hold device never gets any back. */
static __always_inline int from_owner(const void *data, const void *end, const struct slot *slot)
{
	const struct ethhdr *eth = data;
	const __u16 *source = (const __u16 *)eth->h_source, *owner = (const __u16 *)slot->mac;

	if (!hold_ifindex || (const void *)(eth + 1) > end)
		return 0;
	return source[0] == owner[0] && source[1] == owner[1] && source[2] == owner[2];
}

/* The client acknowledges what no earlier owner has sent: so the one that the flow is offered to
 * has taken it and answers. That is known here before user space hears of it. */
static __always_inline int has_heir(const struct slot *slot)
{
	return slot->belief.known && (__s32)(slot->belief.last_ack - slot->offered_at) > 0;
}

/* Counted by weight and not by frame: the hold device gets a large frame in pieces. */
static __always_inline int hold(struct slot *slot, const struct segment *segment)
{
	__sync_fetch_and_add(&slot->held, segment->payload ? segment->payload : 1);
	return bpf_redirect(hold_ifindex, 0);
}
