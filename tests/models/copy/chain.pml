/*
 * Chains: a stream K, received lazily into an intermediate buffer, whose segments go on to where they
 * are needed; the receive may be aborted in between. One thread of the service, one of the client.
 * What comes first out of K belongs to the first receive.
 */
#ifndef TASKS
#define TASKS 3
#endif
#define SLOTS TASKS
#define SEGS 2
#define BUFFERS 3
#define WORKERS 1
#define THREADS 1
#define FINE 0
#define ABORTS 1
#define HANDLERS 0
#define DEATH 0
#include "copy.pml"

#define COPY 1
#define DELIVER 2 /* for good: what the buffer holds afterwards is not defined */
#define RECEIVE 3 /* lazily */
#define READ 4
#define WRITE 5
#define ABORT 6 /* the newest receive into buffer x */
#define END 7
#define I 0
#define D 1
#define J 2
#define LENGTH 8

byte kind[TASKS];
byte promised; /* of the stream, to receives */
byte taken;    /* out of it */
#define VALUE(n) (100 + (n))

short program[LENGTH];
byte length;
#define OP(op, x, y) program[length] = op * 16 + (x) * 4 + (y); length++
#define X ((program[pc] >> 2) & 3)
#define Y (program[pc] & 3)
#define KIND (program[pc] >> 4)

/* Which of the older u the segment s of v waits for: by memory, and at the stream. */
#define READS(v, b) (kind[v] != RECEIVE && src[v] == (b))
#define OBSTRUCTS(u, v, s) \
	(!DONE(u, s) && (dst[u] == dst[v] || READS(u, dst[v]) || READS(v, dst[u])))
#define BOTH_RECEIVE(u, v) (kind[u] == RECEIVE && kind[v] == RECEIVE)
#ifdef BUG_RECEIVES_OUT_OF_ORDER
#define AHEAD(u, v) 0
#define IN_ORDER(v, s) 1
#else
#define AHEAD(u, v) (BOTH_RECEIVE(u, v) && !WHOLE(u))
#define IN_ORDER(v, s) (kind[v] != RECEIVE || s == 0 || DONE(v, 0))
#endif
#define CLEAR(u, v, s) (!OBSTRUCTS(u, v, s) && !AHEAD(u, v))
#define CLEAR0(s) 1
#define CLEAR1(s) CLEAR(0, 1, s)
#define CLEAR2(s) (CLEAR(0, 2, s) && CLEAR(1, 2, s))
#define CLEAR3(s) (CLEAR(0, 3, s) && CLEAR(1, 3, s) && CLEAR(2, 3, s))

/* A receive is made when its time is up, when it is aborted, or when something that is due needs it:
 * what reads its buffer, or writes there, or receives behind it. */
#define ASKS(w, v) \
	(w < head && !WHOLE(w) && kind[w] != RECEIVE && (src[w] == dst[v] || dst[w] == dst[v]))
#define ASKED(v) (kind[v] != RECEIVE || hasty || ended > 0 || BIT(aborting, v))
#define BEHIND(w, v) (w < head && !WHOLE(w) && BOTH_RECEIVE(v, w))
#define DUE3 ASKED(3)
#if TASKS > 3
#define BY3(v) (ASKS(3, v) || (BEHIND(3, v) && DUE3))
#else
#define BY3(v) 0
#endif
#define DUE2 (ASKED(2) || BY3(2))
#define BY2(v) (ASKS(2, v) || (BEHIND(2, v) && DUE2))
#define DUE1 (ASKED(1) || BY2(1) || BY3(1))
#define BY1(v) (ASKS(1, v) || (BEHIND(1, v) && DUE1))
#define DUE0 (ASKED(0) || BY1(0) || BY2(0) || BY3(0))

#define OPEN(v, s) (v < head && !DONE(v, s) && !TAKEN(v, s))
#define MAKE(t, i) OPEN(t, i) && DUE##t && IN_ORDER(t, i) && CLEAR##t(i) -> v = t; s = i
#ifdef BUG_ABORTED_RECEIVE_IS_NOT_MADE
#define NEEDED(w, v) (w < head && READS(w, dst[v]) && !WHOLE(w))
#define DROP(t, i) \
	BIT(aborting, t) && OPEN(t, i) && !NEEDED(1, t) && !NEEDED(2, t) -> \
		take(t, i); \
		finish(t, i); \
		goto end_idle
#endif

/* The next segment of the stream, in two steps. */
inline takes(to, s) {
	d_step {
		assert(!writing[CELL(to, s)] && reading[CELL(to, s)] == 0);
		writing[CELL(to, s)] = 1;
		value = VALUE(taken);
		taken++
	}
}

inline puts(to, s) {
	d_step {
		mem[CELL(to, s)] = value;
		writing[CELL(to, s)] = 0;
		value = 0
	}
}

/* Who takes segment s of receive v past its buffer: nobody else may need it there. What is not given
 * up goes past only when the receive is aborted. */
#ifdef BUG_TAKES_WHAT_IS_NOT_GIVEN_UP
#define GIVEN_UP(w) 1
#else
#define GIVEN_UP(w) (kind[w] == DELIVER || BIT(aborting, v))
#endif
inline find_taker() {
	taker = NONE;
	u = v + 1;
	do
	:: u >= head -> break
	:: else ->
		if
		:: !DONE(u, s) && READS(u, dst[v]) && taker == NONE && GIVEN_UP(u) -> taker = u
		:: !DONE(u, s) && READS(u, dst[v]) && (taker != NONE || !GIVEN_UP(u)) ->
			taker = NONE;
			break
		:: else
		fi;
		/* Behind this, the buffer is another's. */
		if
		:: dst[u] == dst[v] -> break
		:: else
		fi;
		u++
	od;
	/* Its destination must be free, too. */
	u = 0;
	do
	:: taker == NONE || u == taker -> break
	:: else ->
		if
		:: u != v && OBSTRUCTS(u, taker, s) -> taker = NONE; break
		:: else
		fi;
		u++
	od;
	u = 0
}

proctype worker() {
	byte v, s, u, k, taker, value;
	bit copying;
end_idle:
	atomic {
		if
		:: MAKE(0, 0)
		:: MAKE(0, 1)
		:: MAKE(1, 0)
		:: MAKE(1, 1)
		:: MAKE(2, 0)
		:: MAKE(2, 1)
#if TASKS > 3
		:: MAKE(3, 0)
		:: MAKE(3, 1)
#endif
		:: abort_ring != 0 ->
			aborting = aborting | abort_ring;
			abort_ring = 0;
			goto end_idle
#ifdef BUG_ABORTED_RECEIVE_IS_NOT_MADE
		:: DROP(0, 0)
		:: DROP(0, 1)
#endif
		fi
	}
	atomic {
		if
		:: CLAIMABLE(v, s) -> take(v, s)
		:: else -> v = 0; s = 0; goto end_idle
		fi;
		taker = NONE
	}
	if
	:: kind[v] != RECEIVE ->
		copy_reads(src[v], dst[v], s);
		copy_writes(src[v], dst[v], s)
	:: kind[v] == RECEIVE ->
		atomic {
			/* Planned, or as if there were too many to look at. */
			if
			:: find_taker()
			:: skip
			fi
		}
		atomic {
			if
#ifndef BUG_TAKER_IS_NOT_CLAIMED
			:: taker != NONE && CLAIMABLE(taker, s) -> take(taker, s)
			:: taker != NONE && !CLAIMABLE(taker, s) -> taker = NONE
#endif
			:: else
			fi
		}
		if
		:: taker != NONE ->
			takes(dst[taker], s);
			puts(dst[taker], s)
		:: taker == NONE ->
			takes(dst[v], s);
			puts(dst[v], s)
		fi
	fi;
	finish(v, s);
	/* In between it is done where the taker copies from, and his bytes are not there. */
	if
	:: taker != NONE ->
#ifdef BUG_TAKER_IS_NOT_CLAIMED
		d_step { take(taker, s) }
#endif
		finish(taker, s)
	:: else
	fi;
	d_step { v = 0; s = 0; taker = 0 }
	goto end_idle
}

/* What the operation has to wait for, newest first, down to what waits for nobody; NONE, or ASK
 * where a lazy receive is in the way of a copy: the service reads past it. */
#define ASK 14
#define RELEVANT(t) (dst[t] == X || (KIND == WRITE && READS(t, X)))
inline lowest(t) {
	if
	:: kind[t] == RECEIVE && !DONE(t, 0) -> s = 0
	:: kind[t] == RECEIVE && DONE(t, 0) -> s = 1
	:: else
	fi
}
inline look_over() {
	u = NONE;
	s = Y;
	k = head;
	do
	:: k == 0 -> break
	:: else ->
		k--;
		if
		:: u == NONE && RELEVANT(k) && !DONE(k, Y) -> u = k; lowest(u)
		:: u != NONE && u != ASK && (OBSTRUCTS(k, u, s) || AHEAD(k, u)) ->
			if
			:: kind[u] != RECEIVE && kind[k] == RECEIVE -> u = ASK
			:: else -> u = k; lowest(u)
			fi
		:: else
		fi
	od
}
#define STILL(t) (t < head && RELEVANT(t) && !DONE(t, Y))
#if TASKS > 3
#define PENDING (STILL(0) || STILL(1) || STILL(2) || STILL(3))
#define ALL_WHOLE (WHOLE(0) && WHOLE(1) && WHOLE(2) && WHOLE(3))
#else
#define PENDING (STILL(0) || STILL(1) || STILL(2))
#define ALL_WHOLE (WHOLE(0) && WHOLE(1) && WHOLE(2))
#endif

proctype client() {
	byte pc, t, u, k, s, value;
	bit copying;
next:
	atomic {
		if
		:: KIND == READ || KIND == WRITE -> goto sync
		:: KIND == ABORT -> goto abort
		:: KIND == END -> goto end
		:: else
		fi;
		/* A copy of x to y, or a receive into x. */
		t = head;
		kind[t] = KIND;
		src[t] = (KIND == RECEIVE -> NONE : X);
		dst[t] = (KIND == RECEIVE -> X : Y);
		claim_gen[t] = GEN(t);
		done_gen[t] = GEN(t);
		k = 0;
		if
		:: KIND == RECEIVE ->
			do
			:: k == SEGS -> break
			:: else -> want[CELL(X, k)] = VALUE(promised); promised++; k++
			od
		:: else ->
			do
			:: k == SEGS -> break
			:: else ->
				want[CELL(Y, k)] = want[CELL(X, k)];
				if
				:: KIND == DELIVER -> want[CELL(X, k)] = ANY
				:: else
				fi;
				k++
			od
		fi;
		head++;
		k = 0;
		t = 0;
		pc++
	}
	goto next;

abort:
	atomic {
		t = head;
		do
		:: kind[t - 1] == RECEIVE && dst[t - 1] == X -> t--; break
		:: else -> t--
		od;
		abort_ring = abort_ring | (1 << t);
		k = 0;
		do
		:: k == SEGS -> break
		:: else -> want[CELL(X, k)] = ANY; k++
		od;
		k = 0
	}
	/* It is over when nobody writes there any more. */
	atomic { WHOLE(t) -> t = 0; pc++ }
	goto next;

sync:
	atomic {
		look_over();
		if
		:: u == NONE -> goto synced
		:: u == ASK -> goto ask
		:: else
		fi
	}
	atomic {
		if
		:: CLAIMABLE(u, s) -> take(u, s)
		:: else -> goto busy
		fi
	}
	if
	:: kind[u] == RECEIVE -> takes(dst[u], s); puts(dst[u], s)
	:: kind[u] != RECEIVE -> copy_reads(src[u], dst[u], s); copy_writes(src[u], dst[u], s)
	fi;
	finish(u, s);
	goto sync;
busy:
	DONE(u, s) || !TAKEN(u, s);
	goto sync;
ask:
	!PENDING;

synced:
	atomic { u = 0; s = 0 }
	d_step {
		assert(!writing[CELL(X, Y)]);
		if
		:: KIND == READ -> assert(want[CELL(X, Y)] == ANY || mem[CELL(X, Y)] == want[CELL(X, Y)])
		:: KIND == WRITE ->
			assert(reading[CELL(X, Y)] == 0);
			mem[CELL(X, Y)] = 32 + pc;
			want[CELL(X, Y)] = 32 + pc
		fi;
		pc++
	}
	goto next;

end:
	ended++;
	atomic { ALL_WHOLE -> left++ }
	left == THREADS;
	d_step {
		assert(taken == promised);
		k = 0;
		do
		:: k == CELLS -> break
		:: else ->
			assert(want[k] == ANY || mem[k] == want[k]);
			assert(reading[k] == 0 && !writing[k]);
			k++
		od;
		k = 0
	}
}

init {
	byte k;
	atomic {
		if
		:: hasty = 0
		:: hasty = 1
		fi;
		if
		:: /* a head that is looked at, a body that goes on, the next head */
			OP(RECEIVE, I, 0); OP(READ, I, 0); OP(DELIVER, I, D); OP(RECEIVE, J, 0);
			OP(READ, J, 0); OP(READ, D, 1); OP(READ, D, 0)
		:: /* a head that is changed before it goes on, and the same buffer again */
			OP(RECEIVE, I, 0); OP(WRITE, I, 0); OP(DELIVER, I, D); OP(RECEIVE, I, 0);
			OP(READ, D, 1); OP(READ, I, 1); OP(READ, D, 0)
		:: /* the intermediate is aborted, and what was copied from it before is needed */
			OP(RECEIVE, I, 0); OP(COPY, I, D); OP(ABORT, I, 0); OP(WRITE, I, 1);
			OP(RECEIVE, J, 0); OP(READ, D, 1); OP(READ, J, 0)
		:: /* aborted behind its head, with nobody who needs the rest */
			OP(RECEIVE, I, 0); OP(READ, I, 0); OP(ABORT, I, 0); OP(WRITE, I, 1);
			OP(RECEIVE, J, 0); OP(READ, J, 1)
		:: /* aborted and delivered */
			OP(RECEIVE, I, 0); OP(DELIVER, I, D); OP(ABORT, I, 0); OP(RECEIVE, I, 0);
			OP(READ, I, 0); OP(READ, D, 1)
		:: /* copied on and looked at in the buffer as well */
			OP(RECEIVE, I, 0); OP(COPY, I, D); OP(READ, I, 1); OP(WRITE, I, 0);
			OP(READ, D, 0); OP(RECEIVE, J, 0); OP(READ, J, 1)
		:: /* a chain of two: what was delivered is copied on */
			OP(RECEIVE, I, 0); OP(DELIVER, I, D); OP(COPY, D, J); OP(READ, J, 1);
			OP(WRITE, D, 1); OP(READ, D, 0)
#if TASKS > 3
		:: /* two take from one that is aborted */
			OP(RECEIVE, I, 0); OP(COPY, I, D); OP(COPY, I, J); OP(ABORT, I, 0);
			OP(RECEIVE, I, 0); OP(READ, J, 1); OP(READ, D, 0)
		:: /* one after the other through one buffer */
			OP(RECEIVE, I, 0); OP(DELIVER, I, D); OP(RECEIVE, I, 0); OP(DELIVER, I, J);
			OP(READ, J, 1); OP(WRITE, I, 0); OP(READ, D, 0)
		:: /* delivered over what was delivered before */
			OP(RECEIVE, I, 0); OP(DELIVER, I, D); OP(RECEIVE, J, 0); OP(DELIVER, J, D);
			OP(READ, D, 1); OP(WRITE, I, 1); OP(READ, D, 0)
#endif
		fi;
		OP(END, 0, 0);
		k = 0;
		do
		:: k == CELLS -> break
		:: else -> mem[k] = k + 1; want[k] = k + 1; k++
		od;
		k = 0;
		length = 0;
		run worker();
		run client()
	}
}
