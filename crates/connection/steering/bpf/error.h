/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* ICMP errors go to the owner of their flow, which needs the path's MTU. */
#pragma once

#include "rewrite.h"

/* RFC 5927 4.1: a router's error quotes a segment that is in flight. */
static __always_inline int is_in_flight(const struct tracked_state *tracked, __u32 seq)
{
	return tracked->known && seq - tracked->last_ack <= tracked->window_max;
}

/* Between two owners the error goes to this host's stack, which caches the path's MTU for all its
 * sockets; the next owner gets an error of its own from the router. */
static __always_inline int steer_error(struct __sk_buff *skb, const struct segment *segment,
				       struct flow_entry *entry)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 state = state_of(entry);

	if (state == FLOW_LOCAL || state == FLOW_HOLD || from_owner(data, end, entry) ||
	    (state == FLOW_OFFERED && !has_next_owner(entry)))
		return NEXT;
	if (!is_in_flight(&entry->tracked, segment->seq)) {
		count(COUNT_ERRORS_REFUSED);
		return SHOT;
	}
	int verdict = send_to_owner(skb, entry, segment->key.family);

	if (verdict != SHOT)
		count(COUNT_ERRORS);
	return verdict;
}
