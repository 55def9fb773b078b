/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What becomes of a packet of a known flow. Only hardware addresses change, so no checksum does:
 * right for complete and for partial checksums alike. */
#pragma once

#include "parse.h"

#define NEXT -1 /* TCX_NEXT and TC_ACT_UNSPEC alike */

static __always_inline void note(struct slot *slot, const struct segment *segment)
{
	/* Late and reordered segments must not move it back. */
	if (segment->flags & TCP_ACK &&
	    (!slot->last_ack || (__s32)(segment->ack - slot->last_ack) >= 0)) {
		slot->last_ack = segment->ack;
		slot->last_window = segment->window;
	}
	slot->last_seq = segment->seq_end;
	if (segment->flags & (TCP_FIN | TCP_RST))
		slot->closing |= segment->flags & (TCP_FIN | TCP_RST);
}

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
 * and the window that came with it. */
static __always_inline void refresh_ack(struct __sk_buff *skb, const struct segment *segment,
					const struct slot *slot)
{
	__u32 newest = slot->last_ack;

	if (!(segment->flags & TCP_ACK) || !newest || (__s32)(segment->ack - newest) >= 0)
		return;
	__u32 tcp = sizeof(struct ethhdr) +
		    (segment->key.family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__be32 from = bpf_htonl(segment->ack), to = bpf_htonl(newest);
	__be16 before = bpf_htons(segment->window), after = bpf_htons(slot->last_window);

	if (bpf_l4_csum_replace(skb, tcp + 16, from, to, sizeof(to)) ||
	    bpf_skb_store_bytes(skb, tcp + 8, &to, sizeof(to), 0))
		return;
	if (!bpf_l4_csum_replace(skb, tcp + 16, before, after, sizeof(after)))
		bpf_skb_store_bytes(skb, tcp + 14, &after, sizeof(after), 0);
}

static __always_inline int send_to_owner(struct __sk_buff *skb, struct slot *slot)
{
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
	return slot->last_ack && (__s32)(slot->last_ack - slot->offered_at) > 0;
}

/* A slot's flow begins anew: the client's port serves another connection. */
static __always_inline void forget(struct slot *slot)
{
	slot->last_ack = 0;
	slot->last_seq = 0;
	slot->closing = 0;
}

/* Counted by weight and not by frame: the hold device gets a large frame in pieces. */
static __always_inline int hold(struct slot *slot, const struct segment *segment)
{
	__sync_fetch_and_add(&slot->held, segment->weight);
	return bpf_redirect(hold_ifindex, 0);
}
