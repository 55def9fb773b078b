/*
 * The copy service as a model, part 2: a thread of the service. It takes any segment that it may,
 * in any order: so every order of promotion, every policy of absorption and several copies under
 * way at once are among its runs.
 */

/* Older tasks that v has to wait for; reads after writes are resolved, see below. */
#define OBSTRUCTS(u, v, s) ((WAW(u, v) || WAR(u, v)) && !DONE(u, s))
#define FREE0(s) 1
#define FREE1(s) (!OBSTRUCTS(0, 1, s))
#define FREE2(s) (!OBSTRUCTS(0, 2, s) && !OBSTRUCTS(1, 2, s))
#define FREE3(s) (!OBSTRUCTS(0, 3, s) && !OBSTRUCTS(1, 3, s) && !OBSTRUCTS(2, 3, s))

/* Absorption: is a pin that a read of buffer b needs, among the tasks older than 1, 2, 3, had by
 * somebody else? The newest undone writer of b is read past, to its own source, and so on. */
#ifdef BUG_ABSORB_PAST_DONE
#define HIDES(k, b, s) (dst[k] == (b))
#elif defined(BUG_NO_RAW)
#define HIDES(k, b, s) 0
#else
#define HIDES(k, b, s) (dst[k] == (b) && !DONE(k, s))
#endif
#if defined(BUG_NO_PIN) || defined(BUG_OLDEST_WRITER_WINS) || defined(BUG_TRIES_HELD_PINS)
#define STUCK1(b, s) 0
#define STUCK2(b, s) 0
#define STUCK3(b, s) 0
#else
#define HELD(k, s) (!DONE(k, s) && TAKEN(k, s))
#define STUCK1(b, s) (HIDES(0, b, s) && HELD(0, s))
#define STUCK2(b, s) (HIDES(1, b, s) -> (HELD(1, s) || STUCK1(src[1], s)) : STUCK1(b, s))
#define STUCK3(b, s) (HIDES(2, b, s) -> (HELD(2, s) || STUCK2(src[2], s)) : STUCK2(b, s))
#endif
#define STUCK0(b, s) 0

/* A lazy task is due when its time is up, when the ring is full, and when something that is due
 * depends on it. Abort makes what reads the destination due. */
#if ABORTS
#define FORCED(u, v) (BIT(aborting, u) && dst[u] == src[v])
#define FORCED1 FORCED(0, 1)
#define FORCED2 (FORCED(0, 2) || FORCED(1, 2))
#define FORCED3 (FORCED(0, 3) || FORCED(1, 3) || FORCED(2, 3))
#else
#define FORCED1 0
#define FORCED2 0
#define FORCED3 0
#endif
#define FORCED0 0
#ifdef BUG_NO_HURRY
#define ASKED(v) (!BIT(lazy, v) || hasty || ended == THREADS || FORCED##v)
#else
#define ASKED(v) (!BIT(lazy, v) || hasty || ended == THREADS || waiting > 0 || FORCED##v)
#endif
#define NEEDS(w, v, s) (w < seen && DEPENDS(v, w) && !DONE(w, s))
#define DUE3(s) ASKED(3)
#if TASKS > 3
#define BY3(v, s) (NEEDS(3, v, s) && DUE3(s))
#else
#define BY3(v, s) 0
#endif
#define DUE2(s) (ASKED(2) || BY3(2, s))
#if TASKS > 2
#define BY2(v, s) (NEEDS(2, v, s) && DUE2(s))
#else
#define BY2(v, s) 0
#endif
#define DUE1(s) (ASKED(1) || BY2(1, s) || BY3(1, s))
#if TASKS > 1
#define BY1(v, s) (NEEDS(1, v, s) && DUE1(s))
#else
#define BY1(v, s) 0
#endif
#define DUE0(s) (ASKED(0) || BY1(0, s) || BY2(0, s) || BY3(0, s))

#define OPEN(v, s) (v < seen && !DONE(v, s) && !TAKEN(v, s))
#define READY(v, s) (OPEN(v, s) && DUE##v(s) && FREE##v(s) && !STUCK##v(src[v], s))
#define COPY(t, i) READY(t, i) -> v = t; s = i

/* Nobody who reads what t writes, and was there before the abort, is left undone. */
#ifdef BUG_ABORT_IGNORES_DEPENDENTS
#define READER(w, t, s) 0
#else
#define READER(w, t, s) (w < seen && src[w] == dst[t] && !DONE(w, s))
#endif
#define READERS3(t, s) 0
#if TASKS > 3
#define READERS2(t, s) READER(3, t, s)
#else
#define READERS2(t, s) 0
#endif
#if TASKS > 2
#define READERS1(t, s) (READER(2, t, s) || READERS2(t, s))
#else
#define READERS1(t, s) 0
#endif
#define READERS0(t, s) (READER(1, t, s) || READERS1(t, s))
#ifdef BUG_ABORT_BEFORE_DRAINING
#define DRAINED 1
#elif defined(BUG_ABORT_DRAINS_TO_A_GAP)
#define DRAINED (seen == head || line[SLOT(seen)] != GEN(seen))
#else
#define DRAINED (seen >= abort_head)
#endif
#define DROP(t, i) \
	BIT(aborting, t) && DRAINED && OPEN(t, i) && !READERS##t(t, i) -> \
		v = t; \
		s = i; \
		goto drop

/* The handler of t frees the source of t. That is like a write: it waits for t, and for what is
 * older and reads there, or writes there: a task that was read past has its copy still to make. */
#ifdef BUG_HANDLER_AFTER_FIRST_SEGMENT
#define RIPE(t) (done_gen[SLOT(t)] == GEN(t) && BIT(done[SLOT(t)], 0))
#else
#define RIPE(t) (done_gen[SLOT(t)] == GEN(t) && WHOLE(t))
#endif
#ifdef BUG_HANDLER_IGNORES_OLDER_READERS
#define TOUCHES(u, t) (dst[u] == src[t])
#elif defined(BUG_HANDLER_IGNORES_OLDER_WRITERS)
#define TOUCHES(u, t) (src[u] == src[t])
#else
#define TOUCHES(u, t) (src[u] == src[t] || dst[u] == src[t])
#endif
#define USES(u, t) (TOUCHES(u, t) && !WHOLE(u))
#define USES0(t) 0
#define USES1(t) USES(0, t)
#define USES2(t) (USES(0, t) || USES(1, t))
#define USES3(t) (USES(0, t) || USES(1, t) || USES(2, t))
#define FRESH(t) (state_gen[SLOT(t)] == GEN(t) && state[SLOT(t)] == 0)
#define MARK(t) \
	t < seen && BIT(handlers, t) && FRESH(t) && RIPE(t) && !USES##t(t) -> \
		state[SLOT(t)] = DUE; \
		goto end_idle

#if HANDLERS && !defined(BUG_RETIRE_BEFORE_HANDLER)
#define HANDLED(t) (!BIT(handlers, t) || (state_gen[SLOT(t)] == GEN(t) && state[SLOT(t)] == RUN))
#else
#define HANDLED(t) 1
#endif
#ifdef BUG_RETIRE_BEFORE_DONE
#define RETIRABLE (tail < seen && claim[SLOT(tail)] == ALL)
#else
#define RETIRABLE (tail < seen && WHOLE(tail) && HANDLED(tail))
#endif

/* Where the newest bytes of the source of v are, and the tickets read past. */
inline resolve() {
	from = src[v];
	pins = 0;
#ifdef BUG_OLDEST_WRITER_WINS
	k = 0;
	do
	:: k == v -> break
	:: k < v && HIDES(k, from, s) -> pins = 1 << k; from = src[k]; break
	:: else -> k++
	od;
#else
	k = v;
	do
	:: k == 0 -> break
	:: else ->
		k--;
		if
		:: HIDES(k, from, s) ->
			if
			:: !DONE(k, s) -> pins = pins | (1 << k)
			:: else
			fi;
			from = src[k]
		:: else
		fi
	od;
#endif
	k = 0;
#ifdef BUG_NO_PIN
	pins = 0
#endif
}

inline release_pins() {
	k = 0;
	do
	:: k == TASKS -> break
	:: else ->
		if
		:: BIT(held, k) -> give_back(k, s)
		:: else
		fi;
		k++
	od;
	k = 0;
	held = 0
}

inline forget() { v = 0; s = 0; from = 0; pins = 0; held = 0 }

proctype worker() {
	byte v, s, k, from, pins, held, value;
	bit copying;
end_idle: {
	atomic {
		if
		:: COPY(0, 0)
		:: COPY(1, 0)
#if TASKS > 2
		:: COPY(2, 0)
#endif
#if TASKS > 3
		:: COPY(3, 0)
#endif
#if SEGS > 1
		:: COPY(0, 1)
		:: COPY(1, 1)
#if TASKS > 2
		:: COPY(2, 1)
#endif
#if TASKS > 3
		:: COPY(3, 1)
#endif
#endif
		:: seen < head && line[SLOT(seen)] == GEN(seen) -> seen++; goto end_idle
#if RETIRES
		:: RETIRABLE -> tail++; goto end_idle
#endif
#if HANDLERS
		:: MARK(0)
		:: MARK(1)
#if TASKS > 2
		:: MARK(2)
#endif
#if TASKS > 3
		:: MARK(3)
#endif
#endif
#if ABORTS
		:: abort_ring != 0 ->
			aborting = aborting | abort_ring;
			abort_ring = 0;
			abort_head = head;
			goto end_idle
		:: DROP(0, 0)
		:: DROP(1, 0)
#if TASKS > 2
		:: DROP(2, 0)
#endif
#if TASKS > 3
		:: DROP(3, 0)
#endif
#if SEGS > 1
		:: DROP(0, 1)
		:: DROP(1, 1)
#if TASKS > 2
		:: DROP(2, 1)
#endif
#if TASKS > 3
		:: DROP(3, 1)
#endif
#endif
#endif
		:: nap && waiting == 0 && ended < THREADS -> nap = 0; goto end_asleep
		fi;
		resolve()
	}
	/* Whatever was so when that was chosen need not be so any more: the claim word decides. */
	atomic {
		if
		:: CLAIMABLE(v, s) -> take(v, s)
		:: else -> forget(); goto end_idle
		fi
	}
	/* Pins, newest first; who does not get one gives everything back. */
	do
	:: pins == 0 -> break
	:: else ->
		atomic {
			k = TASKS - 1;
			do
			:: BIT(pins, k) -> break
			:: else -> k--
			od;
			pins = pins & ~(1 << k);
			if
			:: CLAIMABLE(k, s) -> take(k, s); held = held | (1 << k); k = 0
#if defined(BUG_PIN_UNCHECKED)
			:: else -> k = 0
#elif defined(BUG_WAITS_HOLDING)
			:: else -> CLAIMABLE(k, s) -> take(k, s); held = held | (1 << k); k = 0
#else
			:: else -> release_pins(); give_back(v, s); forget(); goto end_idle
#endif
			fi
		}
	od;
#ifdef BUG_PIN_GIVEN_BACK_EARLY
	atomic { release_pins() }
#endif
	copy_reads(from, dst[v], s);
#ifdef BUG_DONE_BEFORE_WRITTEN
	finish(v, s);
	copy_writes(from, dst[v], s);
#else
	copy_writes(from, dst[v], s);
	finish(v, s);
#endif
	d_step { release_pins(); forget() }
	goto end_idle;

drop:
#if ABORTS
	atomic {
		if
		:: CLAIMABLE(v, s) -> take(v, s)
		:: else -> forget(); goto end_idle
		fi
	}
	finish(v, s);
	d_step { forget() }
#endif
	goto end_idle;

end_asleep:
	(waiting > 0 || ended == THREADS);
	goto end_idle
	}
#if DEATH
	unless {
		atomic {
			kill ->
			if
			:: copying ->
				reading[CELL(from, s)]--;
				writing[CELL(dst[v], s)] = 0;
				mem[CELL(dst[v], s)] = TORN;
				copying = 0
			:: else
			fi;
			value = 0;
			k = 0;
			forget();
			dead++
		}
	}
#endif
}

#if DEATH
/* At any moment, or never. */
proctype death() {
end_alive:
	atomic { mortal -> kill = 1 }
}
#endif
