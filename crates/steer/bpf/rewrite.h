/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What becomes of a packet of a known flow. Only hardware addresses change, so no checksum does:
 * right for complete and for partial checksums alike. */
#pragma once

#include "parse.h"

#define NEXT -1 /* TCX_NEXT and TC_ACT_UNSPEC alike */

static __always_inline void note(struct slot *slot, const struct segment *segment)
{
	if (segment->flags & TCP_ACK)
		slot->last_ack = segment->ack;
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

static __always_inline int send_to_owner(struct __sk_buff *skb, struct slot *slot)
{
	__u8 mac[12];

	__builtin_memcpy(mac, slot->mac, sizeof(mac));
	if (bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0))
		return NEXT;
	__sync_fetch_and_add(&slot->packets, 1);
	__sync_fetch_and_add(&slot->bytes, skb->len);
	return bpf_redirect(slot->ifindex, 0);
}

static __always_inline int hold(struct slot *slot)
{
	__sync_fetch_and_add(&slot->held, 1);
	return bpf_redirect(hold_ifindex, 0);
}
