-- Indexes that those of 0006 have taken the place of.

drop index operation_session;
drop index operation_object;
