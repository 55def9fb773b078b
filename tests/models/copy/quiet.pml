/*
 * The two words by which a copy at once and a sync see that nothing is pending: one counts what was
 * raised, the other what is settled. One thread submits, any thread looks for what is over and
 * settles, and a third one, which has heard of a submission, looks at the words and copies without
 * another look.
 */
#define TASKS 2
#ifndef SWEEPERS
#define SWEEPERS 2
#endif

/* Tickets that are taken; tickets below `completed` are known to be done. */
byte head, completed;
bool done[TASKS];
/* Submissions that the third thread has heard of. */
byte told;
byte raised, settled;
active proctype submitter() {
	byte ticket;
	do
	:: head < TASKS ->
#ifdef BUG_RAISED_BEFORE_THE_TICKET
		raised++;
		head++;
#else
		head++;
		raised++;
#endif
		told++
	:: head == TASKS -> break
	od
}

/* In any order. */
active proctype service() {
end:
	do
	:: atomic { head > 0 && !done[0] -> done[0] = true }
	:: atomic { head > 1 && !done[1] -> done[1] = true }
	od
}

/* A sync: moves `completed` on, then settles. */
active [SWEEPERS] proctype sweeper() {
	byte at, seen, rounds;
	bool is_over;
	do
	:: rounds < 2 ->
		rounds++;
		at = completed;
		do
		:: at < head && done[at] -> at++
		:: else -> break
		od;
		atomic {
			if
			:: completed < at -> completed = at
			:: else -> skip
			fi
		};
#ifdef BUG_SETTLED_WHAT_CAME_LATER
		is_over = completed == head;
		seen = raised;
#else
		seen = raised;
		is_over = completed == head;
#endif
		if
		:: is_over ->
#ifdef BUG_SETTLED_UNSEEN
			settled = raised
#else
			atomic {
				if
				:: settled < seen -> settled = seen
				:: else -> skip
				fi
			}
#endif
		:: else -> skip
		fi
	:: rounds == 2 -> break
	od
}

/* A copy at once by a thread that was told of `known` submissions. */
active proctype copier() {
	byte known, over, rounds, k;
	do
	:: rounds < 2 ->
		rounds++;
		known = told;
		over = settled;
		if
		:: over == raised ->
			k = 0;
			do
			:: k < known -> assert(done[k]); k++
			:: k == known -> break
			od
		:: else -> skip
		fi
	:: rounds == 2 -> break
	od
}
